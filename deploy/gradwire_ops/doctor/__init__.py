"""`gradwire doctor`: what is in the way of a job, before it costs hours."""
