"""The operator's side: wiring, admin API, fnctl."""
