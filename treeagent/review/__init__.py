"""Review by people: a queue that begins with the most doubtful items, and a local web page to mark them."""
