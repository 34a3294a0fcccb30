//! `gybe init` and `gybe validate` as a pod's init containers call them, in network namespaces.
#![cfg(test)]

mod arguments;
mod pod;
mod validation;
mod writing;
