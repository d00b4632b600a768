"""Everything optional, one folder a thing. The core never imports it."""
