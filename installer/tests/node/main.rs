//! A node's directories: the passes that change them, called as functions on a [`test_node::TestNode`], and the
//! commands `gybe install`, `gybe uninstall` and `gybe doctor` as an operator calls them, on a [`host_root::HostRoot`].
//!
//! The plugin here is a script that answers VERSION; the tests in `integration/` use the real plugin.
#![cfg(test)]

mod chained;
mod conf_choice;
mod conflists;
mod doctor;
mod doctor_environment;
mod host_root;
mod install_command;
mod pods_on_node;
mod programs;
mod support_bundle;
mod take_over;
mod test_node;
mod uninstall_command;
mod watches;
