"""The parts of a report: what is asked of the lake, the figures as tables, and the page that shows them."""
