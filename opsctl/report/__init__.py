"""Views of what happened: terminal, JSON lines, JUnit, HTML. They read events and do not know who produced them."""
