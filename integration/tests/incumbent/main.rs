//! Gybe beside Istio's own programs: the same arguments for `istio-iptables` and `gybe init`, the same pods for
//! `istio-cni` and `gybe-cni`, compared by connections. `integration/incumbent/setup.sh` builds Istio's programs.
//!
//! `make -C integration incumbent SEED=17 SETS=1 PODS=0` tries argument set 17 alone.
#![allow(clippy::print_stdout, reason = "the seed of a run, for the next one")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod argument_set;
mod comparison;
mod init;
mod pods;
mod random_arguments;
mod random_pods;
mod spellings;
