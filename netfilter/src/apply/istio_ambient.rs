//! The rules of istio-cni for an ambient pod: recognised by their tables and chains, and replaced by Gybe's while the pod
//! runs. At no time is a connection without the rules of one of the two: those of istio-cni's nftables tables are replaced
//! in one transaction of the kernel, those of one variant of iptables in one for each table, and everything else is removed
//! after Gybe's rules are in force. Both sets together treat each connection as one of them does.

use crate::access::NamespaceAccess;
use crate::apply::ApplyError;
use crate::apply::backend::{BackendError, BackendKind};
use crate::apply::presence::{OtherMesh, Presence};
use crate::apply::redirection::{Redirection, RedirectionError};
use crate::iptables::{Iptables, legacy_rules};
use crate::kernel::routes::Rtnetlink;
use crate::model::ruleset::Ruleset;
use crate::nft::Nft;
use crate::nft::batch::ISTIO_AMBIENT_TABLES;

/// The chains of istio-cni's iptables backends for ambient pods. A sidecar's rules have others, too.
const CHAINS: [&str; 2] = ["ISTIO_PRERT", "ISTIO_OUTPUT"];

/// The backends by which a namespace has rules of istio-cni for an ambient pod, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IstioAmbient {
    kinds: Vec<BackendKind>,
}

impl IstioAmbient {
    /// Reads the calling thread's namespace. Returns none if it has no such rules, or also other ones of another mesh.
    /// The chains may contain rules that istio-cni does not write.
    ///
    /// # Errors
    /// When its chains or tables cannot be read.
    pub fn look() -> Result<Option<Self>, BackendError> {
        Self::read(&mut NamespaceAccess::default())
    }

    fn read(access: &mut NamespaceAccess) -> Result<Option<Self>, BackendError> {
        let mut kinds = Vec::new();
        for mesh in Presence::of_chains(&access.chains()?.unwrap_or_default()).other_meshes {
            kinds.push(match mesh {
                OtherMesh::Table { table } if ISTIO_AMBIENT_TABLES.contains(&table.as_str()) => {
                    BackendKind::Nft
                }
                OtherMesh::Chain { chain, .. } if CHAINS.contains(&chain.as_str()) => {
                    BackendKind::IptablesNft
                }
                _ => return Ok(None),
            });
        }
        for (_, saved) in legacy_rules(access)? {
            for chain in saved.others.values().flat_map(|table| table.chains.keys()) {
                if !CHAINS.contains(&chain.as_str()) {
                    return Ok(None);
                }
                kinds.push(BackendKind::IptablesLegacy);
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        Ok((!kinds.is_empty()).then_some(Self { kinds }))
    }
}

impl Redirection {
    /// Makes this the only redirection in the calling thread's namespace: replaces istio-cni's rules and routes for an
    /// ambient pod, and Gybe's. `kind` writes. Changes nothing and returns false if the namespace does not have exactly
    /// these of another mesh.
    ///
    /// # Errors
    /// When rules or routes of istio-cni may be left. Each connection that was captured is still captured then.
    pub fn take_over_ambient(&self, kind: BackendKind) -> Result<bool, RedirectionError> {
        let writer = TakingOver::find(kind)?;
        let mut access = writer.open()?;
        let Some(theirs) = IstioAmbient::read(&mut access)? else { return Ok(false) };
        let ours = Presence::read(&mut access)?.ours;
        let is_other =
            |other: &BackendKind| *other != kind && (theirs.kinds.contains(other) || ours.contains(other));
        // Before the write, because a backend's rules cannot be removed without its programs.
        let others =
            BackendKind::ALL.into_iter().filter(is_other).map(|kind| Ok((kind, TakingOver::find(kind)?)));
        let others = others.collect::<Result<Vec<_>, BackendError>>()?;
        let mut rtnetlink = Rtnetlink::open()?;
        self.routes.apply(&mut rtnetlink)?;
        writer.write(&mut access, &self.rules)?;
        for (kind, other) in &others {
            let removed =
                if access.is_locked() { other.clear(&mut access) } else { other.clear(&mut other.open()?) };
            removed.map_err(|source| ApplyError::NotRemoved { kind: *kind, source })?;
        }
        self.routes.take_over_ambient(&mut rtnetlink)?;
        self.routes.remove_extra(&mut rtnetlink)?;
        Ok(true)
    }
}

/// A backend that takes istio-cni's rules for Gybe's.
enum TakingOver {
    Nft,
    Iptables(Iptables),
}

impl TakingOver {
    fn find(kind: BackendKind) -> Result<Self, BackendError> {
        Ok(match kind.iptables() {
            None => Self::Nft,
            Some(engine) => Self::Iptables(Iptables::find(engine)?.with_others()),
        })
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        match self {
            Self::Nft => Ok(NamespaceAccess::default()),
            Self::Iptables(iptables) => Ok(iptables.lock()?),
        }
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<(), BackendError> {
        match self {
            Self::Nft => Ok(Nft.take_over(access.connection()?, rules)?),
            Self::Iptables(iptables) => Ok(iptables.replace(access, rules).map(drop)?),
        }
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        match self {
            Self::Nft => Ok(Nft.delete_with_istio_ambient(access.connection()?)?),
            Self::Iptables(iptables) => Ok(iptables.delete(access)?),
        }
    }
}
