"""Files on local disks and in buckets."""
