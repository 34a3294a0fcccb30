//! The rules of istio-cni for an ambient pod: recognised by their tables and chains, and replaced by Gybe's while the pod
//! runs. At no time is a connection without the rules of one of the two: those of istio-cni's nftables tables are replaced
//! in one transaction of the kernel, those of one variant of iptables in one for each table, and everything else is removed
//! after Gybe's rules are in force. Both sets together treat each connection as one of them does.

use crate::access::NamespaceAccess;
use crate::apply::backend::{Backend, BackendError, BackendKind};
use crate::apply::presence::{OtherMesh, Presence};
use crate::apply::redirection::{Redirection, RedirectionError};
use crate::apply::write_alone;
use crate::iptables::{Iptables, legacy_rules};
use crate::kernel::routes::Rtnetlink;
use crate::model::inventory::{Inventory, PreviousRules};
use crate::model::ruleset::Ruleset;
use crate::nft::Nft;
use crate::nft::batch::ISTIO_AMBIENT_TABLES;

/// The chain of istio-cni's iptables backends for ambient pods that no sidecar's rules have.
const PREROUTING: &str = "ISTIO_PRERT";
/// Their chains. A sidecar's rules have others, too.
const CHAINS: [&str; 2] = [PREROUTING, "ISTIO_OUTPUT"];

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
        let (mut kinds, mut is_ambient) = (Vec::new(), false);
        for mesh in Presence::of_chains(&access.chains()?.unwrap_or_default()).other_meshes {
            kinds.push(match mesh {
                OtherMesh::Table { table } if ISTIO_AMBIENT_TABLES.contains(&table.as_str()) => {
                    is_ambient = true;
                    BackendKind::Nft
                }
                OtherMesh::Chain { chain, .. } if CHAINS.contains(&chain.as_str()) => {
                    is_ambient |= chain == PREROUTING;
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
                is_ambient |= chain == PREROUTING;
                kinds.push(BackendKind::IptablesLegacy);
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        Ok(is_ambient.then_some(Self { kinds }))
    }
}

impl Redirection {
    /// Makes this the only redirection in the calling thread's namespace: replaces istio-cni's rules and routes for an
    /// ambient pod, and Gybe's. `kind` writes. Changes nothing and returns false if the namespace does not have exactly
    /// these of another mesh.
    ///
    /// Replaces the routes first: as long as rules of istio-cni are left, a next call completes what failed.
    ///
    /// # Errors
    /// When rules or routes of istio-cni may be left. Each connection that was captured is still captured then.
    pub fn take_over_ambient(&self, kind: BackendKind) -> Result<bool, RedirectionError> {
        let writer = taking_over(kind)?;
        let mut access = writer.open()?;
        let Some(theirs) = IstioAmbient::read(&mut access)? else { return Ok(false) };
        let ours = Presence::read(&mut access)?.ours;
        let is_other =
            |other: &BackendKind| *other != kind && (theirs.kinds.contains(other) || ours.contains(other));
        // Before the write, because a backend's rules cannot be removed without its programs.
        let others = BackendKind::ALL.into_iter().filter(is_other).map(taking_over);
        let others = others.collect::<Result<Vec<_>, BackendError>>()?;
        let mut rtnetlink = Rtnetlink::open()?;
        self.routes.apply(&mut rtnetlink)?;
        self.routes.take_over_ambient(&mut rtnetlink)?;
        write_alone(&*writer, &mut access, &self.rules, &others)?;
        self.routes.remove_extra(&mut rtnetlink)?;
        Ok(true)
    }
}

/// Returns the backend that takes istio-cni's rules for Gybe's.
fn taking_over(kind: BackendKind) -> Result<Box<dyn Backend>, BackendError> {
    Ok(match kind.iptables() {
        None => Box::new(NftTakingOver),
        Some(engine) => Box::new(Iptables::find(engine)?.with_others()),
    })
}

/// The nftables backend, which also replaces and deletes istio-cni's tables.
struct NftTakingOver;

impl Backend for NftTakingOver {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Nft.open()
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        Nft.take_over(access.connection()?, rules)?;
        Ok(PreviousRules::Different)
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        Ok(Nft.delete_with_istio_ambient(access.connection()?)?)
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Nft.read(access)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Nft.desired(rules)
    }
}
