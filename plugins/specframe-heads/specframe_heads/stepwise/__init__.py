"""Heads that predict the tokens after a row's last token, one place after the other, from one feature of the target."""
