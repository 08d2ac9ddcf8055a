"""Models made of a part of another, on its cache: without some sublayers or layers, or with few of its keys."""
