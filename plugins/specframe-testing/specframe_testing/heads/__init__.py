"""Small heads in the published formats, and a suite for drafters with heads. They need specframe-heads."""
