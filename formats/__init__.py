"""Drafts in the forms of other projects: what leaves for their servers and what comes from them."""
