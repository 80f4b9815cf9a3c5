//! The models that are served, by name.

use std::collections::{BTreeMap, HashMap};

use super::ask::MAX_NAME_BYTES;
use super::options::{
    AiOptions, BoundField, MAX_BODY_BYTES, MAX_FALLBACKS, MAX_MODELS, ModelOptions,
};
use super::text::{Tariff, Tokenizer};

/// A model, checked.
#[derive(Debug)]
pub(crate) struct Model {
    /// What rules know it as; where it stands for many, each is known by its own.
    pub(crate) name: String,
    pub(crate) is_prefix: bool,
    /// The pool's place.
    pub(crate) pool: Option<usize>,
    pub(crate) upstream_name: Option<String>,
    pub(crate) tariff: Tariff,
    pub(crate) max_output: u64,
    pub(crate) default_output: u64,
    /// Where an upstream is asked for no more than a hard budget has reserved.
    pub(crate) bound_field: BoundField,
    pub(crate) fallback: Option<usize>,
    pub(crate) fallback_rules: Vec<String>,
    pub(crate) asks_usage: bool,
    /// More than this, times a request's answers, is not believed to have been used.
    pub(crate) max_usage: u64,
    /// The name that clients know it by, as JSON, where answers must not show the upstream's.
    pub(crate) shown_name: Option<String>,
}

impl Model {
    /// What rules know it as, where a client asked for it by this name.
    pub(crate) fn known_as<'n>(&'n self, asked: &'n str) -> &'n str {
        if self.is_prefix { asked } else { &self.name }
    }

    /// What the upstream is asked for: whatever the client called it, one model has one name there. One that stands
    /// for many goes by the name that the client used.
    pub(crate) fn sent_as(&self) -> Option<&str> {
        let own = (!self.is_prefix).then_some(self.name.as_str());
        self.upstream_name.as_deref().or(own)
    }
}

/// All models.
#[derive(Debug)]
pub(crate) struct Models {
    listed: Vec<Model>,
    by_name: HashMap<String, usize>,
    /// What is done with a model that is not listed.
    unlisted: Option<Model>,
}

impl Models {
    pub(crate) fn new(options: &AiOptions, pools: &BTreeMap<&str, usize>) -> Result<Self, String> {
        if options.models.len() > MAX_MODELS {
            return Err(format!("there must not be more than {MAX_MODELS} models"));
        }
        if !(1..=MAX_BODY_BYTES).contains(&options.max_body_bytes) {
            return Err(format!("max_body_bytes must be from 1 to {MAX_BODY_BYTES}"));
        }
        if options.max_buffered_bytes < options.max_body_bytes {
            return Err("max_buffered_bytes must be at least max_body_bytes".to_owned());
        }
        let mut by_name = HashMap::new();
        for (place, model) in options.models.iter().enumerate() {
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                if name.is_empty() || name.len() > MAX_NAME_BYTES {
                    return Err(format!("a model's name must have 1 to {MAX_NAME_BYTES} bytes"));
                }
                if by_name.insert(name.clone(), place).is_some() {
                    return Err(format!(
                        "two models are called {name:?}; names and aliases differ"
                    ));
                }
            }
        }
        let listed = options.models.iter().map(|model| {
            let made = make(model, options, pools, &by_name);
            made.map_err(|problem| format!("model {:?}: {problem}", model.name))
        });
        let listed: Vec<Model> = listed.collect::<Result<_, String>>()?;
        for model in &listed {
            check_road(model, &listed)?;
        }
        let serves_unlisted = listed.is_empty() || options.forwards_unknown;
        let unlisted = if serves_unlisted {
            let any = ModelOptions { name: "*".to_owned(), ..ModelOptions::default() };
            Some(make(&any, options, pools, &by_name)?)
        } else {
            None
        };
        Ok(Self { listed, by_name, unlisted })
    }

    /// The model of this name: the one that is called so, else the one whose beginning fits best.
    pub(crate) fn find(&self, name: &str) -> Option<&Model> {
        if let Some(model) = self.by_name.get(name).and_then(|place| self.listed.get(*place))
            && !model.is_prefix
        {
            return Some(model);
        }
        let fitting = self.listed.iter().filter(|it| it.is_prefix && name.starts_with(&it.name));
        fitting.max_by_key(|model| model.name.len()).or(self.unlisted.as_ref())
    }

    /// The model that is served in the place of this one.
    pub(crate) fn fallback(&self, model: &Model) -> Option<&Model> {
        model.fallback.and_then(|place| self.listed.get(place))
    }

    /// Those that have one name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.listed.iter().filter(|model| !model.is_prefix).map(|model| model.name.as_str())
    }
}

fn make(
    model: &ModelOptions,
    options: &AiOptions,
    pools: &BTreeMap<&str, usize>,
    by_name: &HashMap<String, usize>,
) -> Result<Model, String> {
    let pool = match &model.pool {
        None => None,
        Some(name) => {
            let place = pools.get(name.as_str()).copied();
            Some(place.ok_or_else(|| format!("there is no pool {name:?}"))?)
        }
    };
    let is_prefix = model.name.ends_with('*');
    if is_prefix && (model.upstream_name.is_some() || !model.aliases.is_empty()) {
        return Err(
            "a name with a * stands for many: it has no upstream_name and no aliases".into()
        );
    }
    let fallback = match &model.fallback {
        None if !model.fallback_rules.is_empty() => {
            return Err("fallback_rules need a fallback".to_owned());
        }
        None => None,
        Some(name) => {
            let place = by_name.get(name).copied().filter(|_| !name.ends_with('*'));
            Some(place.ok_or_else(|| format!("its fallback {name:?} is no model of this list"))?)
        }
    };
    let tokenizer = model.tokenizer.unwrap_or(options.tariff.tokenizer);
    check_tokenizer(tokenizer)?;
    tokenizer.warm();
    let estimate = model.estimate.unwrap_or(options.tariff.estimate);
    estimate.warm();
    let most = model.max_output_tokens.unwrap_or(u64::MAX);
    if most == 0 {
        return Err("max_output_tokens must be at least 1".to_owned());
    }
    let max_usage = model.max_usage_tokens.unwrap_or(options.max_usage_tokens);
    if max_usage == 0 {
        return Err("max_usage_tokens must be at least 1".to_owned());
    }
    let is_hidden = |upstream: &&String| options.hides_upstream_names && **upstream != model.name;
    let hidden = model.upstream_name.as_ref().filter(is_hidden);
    Ok(Model {
        name: model.name.trim_end_matches('*').to_owned(),
        is_prefix,
        pool,
        upstream_name: model.upstream_name.clone(),
        tariff: Tariff { tokenizer, estimate, ..options.tariff },
        max_output: most,
        default_output: model.default_output_tokens.unwrap_or(options.default_output_tokens),
        bound_field: model.bound_field.unwrap_or(options.bound_field),
        fallback,
        fallback_rules: model.fallback_rules.clone(),
        asks_usage: !model.keeps_quiet,
        max_usage,
        shown_name: hidden.and_then(|_| serde_json::to_string(&model.name).ok()),
    })
}

fn check_tokenizer(tokenizer: Tokenizer) -> Result<(), String> {
    if tokenizer.is_built_in() {
        return Ok(());
    }
    let name = tokenizer.name();
    Err(format!(
        "this build has no vocabulary of {name}: use `characters`, or build with `--features tokenizers`"
    ))
}

/// A road of fallbacks must come to an end.
fn check_road(model: &Model, listed: &[Model]) -> Result<(), String> {
    let (mut at, mut steps) = (model, 0);
    while let Some(next) = at.fallback.and_then(|place| listed.get(place)) {
        steps += 1;
        if steps > MAX_FALLBACKS {
            let name = &model.name;
            return Err(format!("model {name:?}: more than {MAX_FALLBACKS} fallbacks in a row"));
        }
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelOptions {
        ModelOptions { name: name.to_owned(), ..ModelOptions::default() }
    }

    fn models(models: Vec<ModelOptions>) -> Result<Models, String> {
        let options = AiOptions { models, ..AiOptions::default() };
        Models::new(&options, &BTreeMap::from([("a", 0), ("b", 1)]))
    }

    #[test]
    fn models_are_found_by_name_alias_and_beginning() {
        let large =
            ModelOptions { aliases: vec!["best".into()], pool: Some("b".into()), ..model("large") };
        let known = models(vec![large, model("gpt-*"), model("gpt-4*"), model("gpt-4o")]).unwrap();
        let found = |name: &str| known.find(name).map(|model| model.name.clone());
        assert_eq!(found("large").as_deref(), Some("large"));
        assert_eq!(found("best").as_deref(), Some("large"));
        assert_eq!(found("gpt-3").as_deref(), Some("gpt-"));
        assert_eq!(found("gpt-4-turbo").as_deref(), Some("gpt-4"));
        assert_eq!(found("gpt-4o").as_deref(), Some("gpt-4o"));
        assert_eq!(found("gpt-*").as_deref(), Some("gpt-"), "a pattern is no name");
        assert_eq!(found("other"), None);
        assert_eq!(known.find("best").unwrap().pool, Some(1));
        assert_eq!(known.names().collect::<Vec<_>>(), ["large", "gpt-4o"]);
        assert!(models(vec![]).unwrap().find("anything").is_some());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let circle = vec![
            ModelOptions { fallback: Some("b".into()), ..model("a") },
            ModelOptions { fallback: Some("a".into()), ..model("b") },
        ];
        for (list, says) in [
            (vec![model("a"), model("a")], "two models"),
            (vec![model("")], "1 to 256"),
            (vec![ModelOptions { pool: Some("x".into()), ..model("a") }], "no pool \"x\""),
            (vec![ModelOptions { fallback: Some("x".into()), ..model("a") }], "no model of this"),
            (
                vec![ModelOptions { fallback_rules: vec!["r".into()], ..model("a") }],
                "need a fallback",
            ),
            (
                vec![ModelOptions { upstream_name: Some("x".into()), ..model("a*") }],
                "stands for many",
            ),
            (vec![ModelOptions { max_output_tokens: Some(0), ..model("a") }], "at least 1"),
            (circle, "in a row"),
        ] {
            let problem = models(list).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
    }
}
