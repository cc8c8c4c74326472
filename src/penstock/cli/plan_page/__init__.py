"""A plan as one page of HTML that needs nothing else: tables, and plots as SVG."""
