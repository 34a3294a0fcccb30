//! Connections in the recorded network: their outcome under every policy and by every backend.
#![cfg(test)]

mod exceptional_packets;
mod network;
mod recorded;
