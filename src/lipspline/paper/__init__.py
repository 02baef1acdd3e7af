"""The tables and figures of the paper: experiments, their recipes, and what runs them; a client of everything below."""
