//! What `trace` says of a recorded flow. No packet is sent here.
