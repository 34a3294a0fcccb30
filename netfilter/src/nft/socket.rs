//! The only netfilter socket: a batch goes out in one piece, and what the kernel says decides.

use super::batch::{Batch, Object};
use super::error::{KernelPart, NftError};
use crate::netlink::answer::Refusal;
use crate::netlink::reply::Outcome;
use crate::netlink::socket::Socket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// nftables of the network namespace its thread was in when it was opened.
#[derive(Debug)]
pub(super) struct Connection(pub(super) Socket);

impl Connection {
    pub(super) fn open() -> Result<Self, NftError> {
        Ok(Self(Socket::open(SockProtocol::NetlinkNetFilter)?))
    }

    /// Sends the batch; `Ok` only when the kernel acknowledged it and refused nothing.
    pub(super) fn transact(&mut self, batch: &Batch) -> Result<(), NftError> {
        self.0.make_room(batch.bytes().len());
        verdict(batch, self.0.transact(batch.bytes(), batch.last())?)
    }
}

/// What the outcome means for the batch.
fn verdict(batch: &Batch, outcome: Outcome) -> Result<(), NftError> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Unknown(source) => Err(NftError::Unsettled { source }),
        Outcome::Refused(refusals) => Err(refused(batch, refusals)),
    }
}

/// The first refusal names the object; one of the table comes before those that follow from it.
fn refused(batch: &Batch, refusals: Vec<Refusal>) -> NftError {
    let others = refusals.len().saturating_sub(1);
    let first = refusals.into_iter().min_by_key(|refusal| refusal.sequence);
    let Some(Refusal { sequence, errno: source, said, offset }) = first else {
        return NftError::Refused {
            object: Object::Transaction,
            said: None,
            lacking: None,
            others,
            source: Errno::UnknownErrno,
        };
    };
    let object = batch.object(sequence).clone();
    let lacking = KernelPart::lacking(&object, source, &batch.expressions(sequence, offset));
    NftError::Refused { object, said, lacking, others, source }
}
