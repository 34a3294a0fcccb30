//! What cannot be known is tried both ways: a walk asks here, and is repeated with other answers.

use super::{Budget, RuleAt};

/// A walk that asks more often than this is not followed to the end of all answers.
const MOST: usize = 256;

/// What a walk asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnknownFact {
    /// Whether a rule applies.
    Applies(RuleAt),
    /// Which of two chains comes first.
    Order(usize, usize),
}

/// The answers of one walk.
#[derive(Debug)]
pub(super) struct Choices {
    budget: Budget,
    answers: Vec<(bool, Option<UnknownFact>)>,
    given: usize,
    walks: usize,
}

impl Choices {
    pub(super) fn within(budget: Budget) -> Self {
        Self { budget, answers: Vec::new(), given: 0, walks: 0 }
    }

    pub(super) fn is_out_of_time(&self) -> bool {
        self.budget.is_spent()
    }

    /// Answers as the script says, and true beyond its end.
    pub(super) fn assume(&mut self, question: UnknownFact) -> bool {
        let answer = match self.answers.get_mut(self.given) {
            Some((answer, asked)) => {
                *asked = Some(question);
                *answer
            }
            None => {
                self.answers.push((true, Some(question)));
                true
            }
        };
        self.given += 1;
        answer
    }

    /// Begins the walk with the next answers; false when all were tried, or too many.
    pub(super) fn next(&mut self) -> bool {
        self.answers.truncate(self.given);
        self.given = 0;
        self.walks += 1;
        while self.answers.last().is_some_and(|(answer, _)| !answer) {
            self.answers.pop();
        }
        let Some((answer, _)) = self.answers.last_mut() else { return false };
        *answer = false;
        true
    }

    /// Reports whether more walks or more time were needed than there are.
    pub(super) fn are_too_many(&self) -> bool {
        self.walks >= MOST || self.is_out_of_time()
    }

    /// The question whose answer made the difference to the walk before.
    pub(super) fn last(&self) -> Option<&UnknownFact> {
        self.answers.iter().rev().find(|(answer, _)| !answer).and_then(|(_, question)| question.as_ref())
    }
}
