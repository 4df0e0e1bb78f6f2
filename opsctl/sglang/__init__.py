"""What is known about SGLang: its source, its servers, its log and its HTTP answers. Plain functions on plain data."""
