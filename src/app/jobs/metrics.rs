//! Metrics of jobs.

use tidegate_runtime::metric::{SetLevel, SetTotal};

use crate::call::job::JobEnd;
use crate::call::jobs::Jobs;

tidegate_runtime::metrics! {
    /// Work of the backend behind its answers.
    pub struct JobMetrics: "tidegate_" {
        /// Jobs that hold the slots of their calls now: [jobs.md](../how-to/jobs.md).
        jobs: Gauge in "jobs",
        /// Jobs that have ended, by how: `done`, `gone` (the backend does not know it any more), `overdue` (it
        /// has lasted as long as its route allows) or `left` (to the next process).
        jobs_ended_total: Counter(end) in "jobs",
        /// Time that jobs which have ended held slots behind their answers. Divided by the jobs that ended it is
        /// their mean time.
        job_seconds_total: FloatCounter in "s",
        /// Answers in which the state of a job could not be read. The job counts as running.
        job_states_unreadable_total: Counter in "answers",
        /// Questions about jobs that Tidegate has asked itself.
        job_questions_total: Counter in "questions",
        /// Jobs beyond `jobs.max`: their slots came back with the answer.
        jobs_beyond_total: Counter in "jobs",
    }
}

impl JobMetrics {
    /// Shows the present state.
    pub fn mirror(&self, of: &Jobs) {
        let (counts, running) = of.counts();
        self.jobs.show(running);
        for end in JobEnd::ALL {
            let ended = counts.ended[end as usize];
            self.jobs_ended_total(end.label()).reach(ended);
        }
        self.job_seconds_total.reach(counts.lasted.as_secs_f64());
        self.job_states_unreadable_total.reach(counts.unreadable);
        self.job_questions_total.reach(counts.asked);
        self.jobs_beyond_total.reach(counts.beyond);
    }
}
