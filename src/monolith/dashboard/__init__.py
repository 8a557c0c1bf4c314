"""A web page over the metrics of a deployment: charts, health, recent cuts, and boxes to predict and to explain an id.

``samples`` parses metrics, ``scraper`` reads the targets, ``charts`` derives series from samples, ``server`` serves the
page. The page needs no build step; its chart library is fetched when the package is built.
"""

from __future__ import annotations

from monolith.dashboard.scraper import Scraper
from monolith.dashboard.server import DashboardServer

__all__ = ["DashboardServer", "Scraper"]
