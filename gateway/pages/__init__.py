"""Pages of server functions in a browser: cookies, tickets, origins, and the page between them."""
