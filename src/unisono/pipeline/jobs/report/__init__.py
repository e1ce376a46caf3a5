"""Reports on the history: queries on the lake, their figures as tables, and the page that shows them."""
