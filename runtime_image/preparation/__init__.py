"""What a trial does for later cold starts: a prepared model, measured and handed out."""
