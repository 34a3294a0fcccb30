//! Connections in the recorded network: their outcome under every policy and by every backend.
#![cfg(test)]

mod exceptional_packets;
mod iptables;
mod istio_1_0_listing;
mod network;
mod nft;
