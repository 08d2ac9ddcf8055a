"""The commands of the lab, one module each, and the options they share."""
