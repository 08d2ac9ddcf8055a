"""``specframe run``: what it decodes, shows and writes."""
