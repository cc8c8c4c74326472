"""Rules of fields that more than one dialect has."""

from penstock.api.fields import FieldRules, HintField, RefusedField

# Fields of both of OpenAI's APIs that answer.
COMMON_RULES: FieldRules = {
    "client_metadata": HintField("It is for the operator of a hosted API; metadata goes into the log."),
    "moderation": RefusedField("texts are not moderated; leave it out."),
    "prompt_cache_options": HintField(
        "Prefixes are cached for as long as there is room; prompt_cache_key keeps conversations for longer.", ({},)
    ),
    "safety_identifier": HintField("Nothing is moderated; user goes into the log."),
    "verbosity": HintField("Models that are served have no such setting; ask for it in the prompt.", ("medium",)),
}
CACHE_MARK = HintField("Prefixes are cached without marks; /v1/messages keeps what is marked.")
