//! Connections in the recorded network: their outcome under every policy, by every backend and by prediction.

#[cfg(test)]
mod exceptional_packets;
#[cfg(test)]
mod faults_catalogue;
#[cfg(test)]
mod iptables;
#[cfg(test)]
mod istio_1_0_listing;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod network;
#[cfg(test)]
mod nft;
#[cfg(test)]
mod predicted;
#[cfg(test)]
mod tproxy_without_proxy;
