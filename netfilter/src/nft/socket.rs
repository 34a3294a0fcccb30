//! The only netfilter socket: a batch goes out in one piece, and what the kernel says decides.

use super::batch::{Batch, Object};
use super::error::{KernelPart, NftError};
use crate::netlink::reply::{Account, Outcome, Received, Refusal};
use crate::netlink::socket::Socket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// nftables of the network namespace its thread was in when it was opened.
#[derive(Debug)]
pub(super) struct Connection(pub(super) Socket);

impl Connection {
    pub(super) fn open() -> Result<Self, NftError> {
        let socket = Socket::open(SockProtocol::NetlinkNetFilter).map_err(|source| NftError::Open { source })?;
        Ok(Self(socket))
    }

    /// Sends the batch; `Ok` only when the kernel acknowledged it and refused nothing.
    pub(super) fn transact(&mut self, batch: &Batch) -> Result<(), NftError> {
        let bytes = batch.bytes();
        self.0.make_room(bytes.len());
        self.0.send(bytes).map_err(|source| NftError::Send { bytes: bytes.len(), source })?;
        let mut account = Account::of(batch.last());
        while !account.is_settled() {
            match self.receive()? {
                Some(received) => account.note(received),
                None => break,
            }
        }
        verdict(batch, account.outcome())
    }

    pub(super) fn receive(&mut self) -> Result<Option<Received<'_>>, NftError> {
        self.0.receive().map_err(|source| NftError::Receive { source })
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
