"""What the practice server is made of. It plays a scenario; it loads no model and judges no drafter."""
