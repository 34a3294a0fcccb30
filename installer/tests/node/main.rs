//! The built `gybe node --pods-from`: queries as the plugin sends them, and invalid ones.

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
