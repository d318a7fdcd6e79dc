"""The process that holds one model: its loop, its links, its batches."""
