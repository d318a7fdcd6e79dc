"""The screen of `fnctl top`: pure lines over a picture, and a thin shell around a terminal."""
