"""Followers that move servables from cut to cut, and the canary before each cut."""
