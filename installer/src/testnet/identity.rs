//! The owner of the sockets that a thread creates: what netfilter's owner matches compare.

use gybe_netfilter::hint::Hint;
use gybe_netfilter::trace::Owner;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use std::borrow::Cow;

#[derive(Debug, thiserror::Error)]
#[error("cannot create sockets owned by uid {} gid {}", .owner.uid, .owner.gid)]
pub struct IdentityError {
    pub owner: Owner,
}

impl Hint for IdentityError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = format!(
            "in a user namespace these ids must be mapped: {} maps a whole range (package uidmap, /etc/subuid, /etc/subgid)",
            gybe_netfilter::netns::UNPRIVILEGED
        );
        Some(hint.into())
    }
}

/// Makes the calling thread, and no other, create sockets as this user and group for the rest of its life.
///
/// `meta skuid` compares `file->f_cred->fsuid` of the socket (net/netfilter/nft_meta.c,
/// `nft_meta_get_eval_skugid`, v6.18), and those credentials are a copy of the thread's at
/// `socket(2)` or `accept(2)`. The file system ids of a thread can be changed alone, and going from
/// 0 to another one keeps `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE` (capabilities(7)).
pub(crate) fn act_as(owner: Owner) -> Result<(), IdentityError> {
    setfsgid(Gid::from_raw(owner.gid));
    setfsuid(Uid::from_raw(owner.uid));
    // Both calls return the previous id whether they worked or not; an invalid id changes nothing.
    let uid = setfsuid(Uid::from_raw(u32::MAX));
    let gid = setfsgid(Gid::from_raw(u32::MAX));
    let current = Owner { uid: uid.as_raw(), gid: gid.as_raw() };
    if current == owner { Ok(()) } else { Err(IdentityError { owner }) }
}
