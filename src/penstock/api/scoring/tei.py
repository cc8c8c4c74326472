"""Requests in the form of TEI (Text Embeddings Inference), as those of other dialects."""

from typing import Literal

from msgspec import structs

from penstock.api.job import Job
from penstock.api.parsing import in_terms_of
from penstock.api.requests import EmbeddingFields, ScoringFields
from penstock.api.resolve import Resolver, check_model_name
from penstock.api.scored import Scored
from penstock.api.scoring.fields import RerankFields, TeiEmbedFields, TeiFields, TeiPredictFields, TeiRerankFields
from penstock.api.scoring.resolve import ScoringResolver
from penstock.api.tasks import check_classifies, does
from penstock.core.errors import InvalidParameter
from penstock.engine.interface import ModelInfo

_CUT = (("truncate_prompt_tokens", "truncate"), ("truncation_side", "truncation_direction"))


def rerank_job(fields: TeiRerankFields, resolver: ScoringResolver, model: ModelInfo) -> Job:
    """The job of a body of `/rerank`. Raises RequestError."""
    with in_terms_of((("documents", "texts"), ("return_documents", "return_text"), *_CUT)):
        job = resolver.rerank(
            RerankFields(
                model=fields.model,
                query=fields.query,
                documents=list(fields.texts),
                top_n=fields.top_n,
                return_documents=bool(fields.return_text),
                truncate_prompt_tokens=-1 if fields.truncate else None,
                truncation_side=_side(fields),
                use_activation=not fields.raw_scores,
            ),
            model,
            returned=False,
        )
    return _in_form(job)


def predict_job(fields: TeiPredictFields, resolver: ScoringResolver, model: ModelInfo) -> Job:
    """The job of a body of `/predict`. Raises RequestError."""
    check_model_name(fields.model, model)
    check_classifies(model)
    if model.vectors.classes is not None and model.vectors.classes.each_token:
        raise InvalidParameter("model", f"{model.name!r} sorts no whole texts: {does(model)}.")
    single = isinstance(fields.inputs, str)
    inputs: list[str | list[str]] = [fields.inputs] if isinstance(fields.inputs, str) else list(fields.inputs)
    with in_terms_of(_CUT):
        asked = ScoringFields(
            truncate_prompt_tokens=-1 if fields.truncate else None,
            truncation_side=_side(fields),
            use_activation=not fields.raw_scores,
        )
        return _in_form(resolver.classes(asked, model, inputs, "inputs", Scored(single=single)))


def embed_job(fields: TeiEmbedFields, resolver: Resolver, model: ModelInfo) -> Job:
    """The job of a body of `/embed`. Raises RequestError."""
    if fields.normalize is False and model.vectors.normalizes:
        raise InvalidParameter("normalize", "this model's vectors have length 1 by its own modules; leave it out.")
    with in_terms_of((("input_type", "prompt_name"), ("input", "inputs"), *_CUT)):
        job = resolver.embedding(
            EmbeddingFields(
                model=fields.model,
                input=fields.inputs,
                input_type=fields.prompt_name,
                dimensions=fields.dimensions,
                truncate_prompt_tokens=-1 if fields.truncate else None,
                truncation_side=_side(fields),
            ),
            model,
        )
    if fields.normalize is False or job.form is None:
        return job
    # What is shortened gets length 1.
    normed = job.form.shortened or not model.vectors.normalizes
    return structs.replace(job, form=structs.replace(job.form, shortened=normed))


def _side(fields: TeiFields | TeiEmbedFields) -> Literal["left", "right"] | None:
    if fields.truncation_direction is None or not fields.truncate:
        return None
    return "left" if fields.truncation_direction.lower() == "left" else "right"


def _in_form(job: Job) -> Job:
    assert job.scored is not None, "the job asks for scores"
    return structs.replace(job, scored=structs.replace(job.scored, form="tei"))
