//! Which of several processes of a kind leads on a node, and the sockets that only a leader keeps. The agents and the
//! containers `repair` use it.

pub(crate) mod leader;
pub(crate) mod process;
pub(crate) mod socket;
