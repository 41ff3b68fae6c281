"""The proof of each resume: what a trainer held when its state was saved, and holds once loaded."""
