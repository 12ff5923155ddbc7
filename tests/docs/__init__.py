"""What the pages in docs/ say is compared with what is there."""
