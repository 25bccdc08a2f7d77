"""What the scripts in the folder above are about, and the little language that they speak."""
