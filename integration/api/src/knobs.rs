//! What a test does to a running server, and asks of it: objects, rights, faults, requests.

use crate::credentials::{self, ServiceAccount};
use crate::faults::Fault;
use crate::objects::key;
use crate::requests::Request;
use crate::resource::Resource;
use crate::server::{ApiServer, ApiServerError};
use crate::tokens::{Token, Tokens};
use crate::validity::Validity;
use crate::watch::Nudge;
use crate::wish::Verb;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

impl ApiServer {
    /// Presents a certificate of that validity from the next handshake on.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn present(&self, validity: Validity) -> Result<(), ApiServerError> {
        Ok(self.identity.present(validity)?)
    }

    /// Makes or overwrites an object: a pod, or what its `kind` says, Node or `DaemonSet`. Gives its
    /// version.
    ///
    /// # Errors
    /// When its kind is another.
    pub fn put(&self, object: Value) -> Result<u64, ApiServerError> {
        let kind = object.get("kind").and_then(Value::as_str);
        let resource = Resource::of_kind(kind)
            .ok_or_else(|| ApiServerError::Kind(kind.unwrap_or_default().to_owned()))?;
        Ok(self.service.objects.put(resource, object))
    }

    /// Makes or overwrites a pod, and gives its version.
    pub fn put_pod(&self, pod: Value) -> u64 {
        self.service.objects.put(Resource::Pods, pod)
    }

    /// Takes a pod away; whether there was one.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> bool {
        self.service.objects.delete(Resource::Pods, &(namespace.to_owned(), name.to_owned()))
    }

    /// Takes away what has that object's kind, namespace and name; whether there was one.
    pub fn delete(&self, object: &Value) -> bool {
        let resource = Resource::of_kind(object.get("kind").and_then(Value::as_str));
        resource.is_some_and(|resource| self.service.objects.delete(resource, &key(object)))
    }

    /// So many pods on other nodes, 110 on each; they cost nothing until they are read.
    pub fn crowd(&self, pods: u32) {
        self.service.objects.set_crowd(pods);
    }

    /// The version of the newest write.
    pub fn version(&self) -> u64 {
        self.service.objects.newest()
    }

    /// Forgets all older versions: watches and pages that start from one are told 410.
    pub fn compact(&self) {
        self.service.objects.compact();
    }

    /// Tells every running watch the version, where it asked for bookmarks.
    pub fn bookmark(&self) {
        self.nudge(Nudge::Bookmark);
    }

    /// Breaks every running watch off, in the middle of an event.
    pub fn cut_watches(&self) {
        self.nudge(Nudge::Cut);
    }

    /// Ends every running watch with 410, as a server does whose history is gone.
    pub fn expire_watches(&self) {
        self.nudge(Nudge::Expire);
    }

    /// Ends every running watch as when its time is up.
    pub fn end_watches(&self) {
        self.nudge(Nudge::End);
    }

    /// Who may come in.
    pub fn tokens(&self) -> &Tokens {
        &self.service.tokens
    }

    /// Takes a right away from the service account: 403 from now on.
    pub fn forbid(&self, verb: Verb, resource: &'static str) {
        self.service.forbid(verb, resource);
    }

    /// Gives it.
    pub fn permit(&self, verb: Verb, resource: &'static str) {
        self.service.permit(verb, resource);
    }

    /// From now on something is wrong, beside what is wrong already.
    pub fn fault(&self, fault: Fault) {
        self.service.faults.add(fault);
    }

    /// Nothing is wrong with requests any more. One that is kept waiting waits on.
    pub fn mend(&self) {
        self.service.faults.clear();
    }

    /// Every request that came so far.
    pub fn requests(&self) -> Vec<Request> {
        self.service.ledger.so_far()
    }

    /// Waits until the requests are as wanted; whether they became so in that time.
    pub fn requests_become(&self, within: Duration, wanted: impl Fn(&[Request]) -> bool) -> bool {
        self.service.ledger.become_so(within, wanted)
    }

    /// Writes a kubeconfig with a token of its own into a directory, and gives its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, directory: &Path) -> Result<PathBuf, ApiServerError> {
        self.kubeconfig_with(directory, &self.tokens().issue(Validity::Now))
    }

    /// The same with that token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig_with(&self, directory: &Path, token: &Token) -> Result<PathBuf, ApiServerError> {
        let path = directory.join("kubeconfig");
        match credentials::kubeconfig(&path, &self.url(), &self.ca_pem(), token) {
            Ok(()) => Ok(path),
            Err(source) => Err(ApiServerError::Write { path, source }),
        }
    }

    /// Fills a directory with a service account's files, as the kubelet mounts them, and a new token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn service_account(&self, directory: &Path) -> Result<ServiceAccount, ApiServerError> {
        let account = ServiceAccount::at(directory, self.ca_pem());
        match account.write(&self.tokens().issue(Validity::Now)) {
            Ok(()) => Ok(account),
            Err(source) => Err(ApiServerError::Write { path: directory.to_owned(), source }),
        }
    }

    fn nudge(&self, nudge: Nudge) {
        // With no watch running there is nobody to be nudged.
        let _nobody = self.service.nudges.send(nudge);
    }
}
