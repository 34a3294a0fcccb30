//! `gybe node --pods-from`: the built program, asked as the plugin asks it, and as others might.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod life;
#[cfg(test)]
mod questions;
#[cfg(test)]
mod sockets;
