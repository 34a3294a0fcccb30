//! Removes Gybe's rules from ambient pods that istio-cni redirects again, after the move back to it. Without that they
//! would stay when istio-cni takes the pod out of the mesh, and lead its connections to a ztunnel that does not listen any
//! more.

use gybe_netfilter::apply::backend::BackendError;
use gybe_netfilter::apply::istio_ambient::IstioAmbient;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{RedirectionError, remove_all};
use gybe_netfilter::compile::has_ambient_rules;
use gybe_netfilter::inspect::verdict::others_redirect_as_ours;
use gybe_netfilter::kernel::routes::{Rtnetlink, has_another_ambient_delivery};

/// The outcome for Gybe's rules in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandBack {
    /// It has none for an ambient pod.
    NoRules,
    /// They were removed.
    Removed,
    /// They stay: istio-cni's rules do not lead to ztunnel every connection that Gybe's lead there.
    Needed,
}

/// Removes Gybe's rules and routes for an ambient pod from the calling thread's namespace, if istio-cni's rules there
/// capture the same connections. Each connection is captured all the time.
///
/// # Errors
/// When they cannot be read, or some of Gybe's may be left.
pub fn hand_back() -> Result<HandBack, RedirectionError> {
    let ours = Presence::look()?.ours.into_iter().map(|kind| kind.find()?.inspect());
    let ours = ours.collect::<Result<Vec<_>, BackendError>>()?;
    if !ours.iter().any(has_ambient_rules) {
        return Ok(HandBack::NoRules);
    }
    let stand = IstioAmbient::look()?.is_some()
        && has_another_ambient_delivery(&mut Rtnetlink::open()?)?
        && others_redirect_as_ours()?;
    if !stand {
        return Ok(HandBack::Needed);
    }
    remove_all()?;
    Ok(HandBack::Removed)
}
