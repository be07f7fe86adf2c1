//! Calls that may begin a job, and calls that ask for the state of one.

pub(crate) mod options;

use std::sync::Arc;

use http::Method;

use super::message::tasks::TaskUse;
use super::{Classifier, Operation, OwnRoute};
use crate::call::job::{JobAsker, JobForm, JobKey, JobRule};
use crate::call::job_meter::JobMeter;
use crate::call::jobs::Jobs;
use crate::call::{HttpCall, OnClientLeft};

impl Classifier {
    /// The jobs whose slots are held.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Finds what an operation has to do with jobs. A poll of a job that holds a slot meets no limit: it may be what frees
    /// that slot.
    pub(super) fn find_job(
        &self,
        operation: &mut Operation,
        route: Option<&OwnRoute>,
        call: &HttpCall,
    ) {
        if !self.has_jobs || operation.is_odd {
            return;
        }
        let task = operation.names.as_mut().and_then(|names| names.task.take());
        if let Some((key, rule)) = self.polled_job(task.as_ref(), call) {
            operation.job = Some(JobMeter::of_poll(&self.jobs, &rule, key));
            operation.limited = false;
            return;
        }
        let rule = route.and_then(|route| route.job.as_ref());
        let Some(rule) = rule.filter(|_| operation.limited) else {
            return;
        };
        let path = call.head.path();
        let asker = match (&rule.form, task) {
            (JobForm::Http(_), _) => JobAsker::Http(path.into()),
            (JobForm::Xapi, Some(TaskUse::Begins { session, form })) => {
                JobAsker::Xapi(path.into(), session, form)
            }
            (JobForm::Xapi, _) => return,
        };
        // The answer names the job, so it is read also if the client has left.
        operation.on_client_left = operation.on_client_left.or(Some(OnClientLeft::Finish));
        operation.job = Some(JobMeter::of_start(&self.jobs, rule, asker, &call.head));
    }

    /// The job for whose state a call asks, if that holds a slot.
    fn polled_job(
        &self,
        task: Option<&TaskUse>,
        call: &HttpCall,
    ) -> Option<(JobKey, Arc<JobRule>)> {
        let path = call.head.path();
        let find = |key: JobKey| {
            // The rule of a job of the process before is found by its path.
            let rule = self.jobs.find(key)?.or_else(|| {
                let mut rules = self.routes.iter().filter_map(|route| route.job.as_ref());
                rules.find(|rule| rule.asks_at(path)).cloned()
            });
            Some((key, rule?))
        };
        match task {
            Some(TaskUse::Asks(task)) => return find(JobKey::of_task(task)),
            Some(TaskUse::Begins { .. }) => return None,
            None => {}
        }
        if call.head.method != Method::GET || self.jobs.is_empty() {
            return None;
        }
        let of_path = || find(JobKey::of_target(path));
        let of_target = || find(JobKey::of_target(call.head.target()));
        of_path().or_else(of_target)
    }
}
