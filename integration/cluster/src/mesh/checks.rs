//! The results of requests, and of `gybe verify --all`.

use gybe_integration::failure::Failure;

use super::application::{Answer, MESHED, Name, request_by_mutual_tls};
use super::commands::Verdicts;
use super::workstation::Workstation;
use crate::checks::Checks;

impl Checks {
    /// Records whether a client's request to a target of this server passes by mutual TLS.
    pub(super) fn passes(
        &mut self,
        what: &str,
        workstation: &Workstation,
        [client, server]: [&str; 2],
        target: &str,
    ) -> Result<Answer, Failure> {
        let answer = request_by_mutual_tls(workstation, client, server, target)?;
        self.holds(what, answer.is_by(server, (MESHED, client)), &answer, "by mutual TLS");
        Ok(answer)
    }

    /// Records whether `gybe verify --all` finds these pods of the mesh redirected.
    pub(super) fn redirected(&mut self, what: &str, verdicts: &Verdicts, pods: &[&str]) {
        for name in pods {
            self.verdict(what, verdicts, (MESHED, name), "redirected");
        }
    }

    /// Records whether this is the verdict of `gybe verify --all` about a pod.
    pub(super) fn verdict(
        &mut self,
        what: &str,
        verdicts: &Verdicts,
        (namespace, name): Name<'_>,
        expected: &str,
    ) {
        let pod = format!("{namespace}/{name}");
        let verdict = verdicts.iter().find(|(name, _)| *name == pod).map(|(_, verdict)| verdict.as_str());
        let is_expected = verdict.is_some_and(|verdict| verdict.split(':').next() == Some(expected));
        let title = format!("{what}: `gybe verify --all` about {pod}");
        self.holds(&title, is_expected, &verdict, expected);
    }
}
