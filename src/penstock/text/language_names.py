"""Codes of languages: two letters of ISO 639-1, as NLLB writes them (FLORES-200), and their names."""

import re
from collections.abc import Mapping
from types import MappingProxyType

# Two letters, or three where there are no two; FLORES-200's code; name.
_TABLE = """
af afr_Latn Afrikaans; am amh_Ethi Amharic; ar arb_Arab Arabic; as asm_Beng Assamese; ast ast_Latn Asturian;
az azj_Latn Azerbaijani; ba bak_Cyrl Bashkir; be bel_Cyrl Belarusian; bg bul_Cyrl Bulgarian; bm bam_Latn Bambara;
bn ben_Beng Bengali; bo bod_Tibt Tibetan; br - Breton; bs bos_Latn Bosnian; ca cat_Latn Catalan; ceb ceb_Latn Cebuano;
cs ces_Latn Czech; cy cym_Latn Welsh; da dan_Latn Danish; de deu_Latn German; el ell_Grek Greek; en eng_Latn English;
eo epo_Latn Esperanto; es spa_Latn Spanish; et est_Latn Estonian; eu eus_Latn Basque; fa pes_Arab Persian;
ff fuv_Latn Fulah; fi fin_Latn Finnish; fr fra_Latn French; fy - Western Frisian; ga gle_Latn Irish;
gd gla_Latn Scottish Gaelic; gl glg_Latn Galician; gn grn_Latn Guarani; gu guj_Gujr Gujarati; ha hau_Latn Hausa;
he heb_Hebr Hebrew; hi hin_Deva Hindi; hr hrv_Latn Croatian; ht hat_Latn Haitian Creole; hu hun_Latn Hungarian;
hy hye_Armn Armenian; id ind_Latn Indonesian; ig ibo_Latn Igbo; ilo ilo_Latn Iloko; is isl_Latn Icelandic;
it ita_Latn Italian; ja jpn_Jpan Japanese; jv jav_Latn Javanese; ka kat_Geor Georgian; kk kaz_Cyrl Kazakh;
km khm_Khmr Khmer; kn kan_Knda Kannada; ko kor_Hang Korean; ku kmr_Latn Kurdish; ky kir_Cyrl Kyrgyz;
lb ltz_Latn Luxembourgish; lg lug_Latn Ganda; ln lin_Latn Lingala; lo lao_Laoo Lao; lt lit_Latn Lithuanian;
lv lvs_Latn Latvian; mg plt_Latn Malagasy; mi mri_Latn Maori; mk mkd_Cyrl Macedonian; ml mal_Mlym Malayalam;
mn khk_Cyrl Mongolian; mr mar_Deva Marathi; ms zsm_Latn Malay; mt mlt_Latn Maltese; my mya_Mymr Burmese;
ne npi_Deva Nepali; nl nld_Latn Dutch; no nob_Latn Norwegian; ns nso_Latn Northern Sotho; ny nya_Latn Chichewa;
oc oci_Latn Occitan; om gaz_Latn Oromo; or ory_Orya Odia; pa pan_Guru Punjabi; pl pol_Latn Polish; ps pbt_Arab Pashto;
pt por_Latn Portuguese; qu quy_Latn Quechua; rn run_Latn Rundi; ro ron_Latn Romanian; ru rus_Cyrl Russian;
rw kin_Latn Kinyarwanda; sd snd_Arab Sindhi; si sin_Sinh Sinhala; sk slk_Latn Slovak; sl slv_Latn Slovenian;
sm smo_Latn Samoan; sn sna_Latn Shona; so som_Latn Somali; sq als_Latn Albanian; sr srp_Cyrl Serbian; ss ssw_Latn Swati;
st sot_Latn Southern Sotho; su sun_Latn Sundanese; sv swe_Latn Swedish; sw swh_Latn Swahili; ta tam_Taml Tamil;
te tel_Telu Telugu; tg tgk_Cyrl Tajik; th tha_Thai Thai; ti tir_Ethi Tigrinya; tk tuk_Latn Turkmen;
tl tgl_Latn Tagalog; tn tsn_Latn Tswana; tr tur_Latn Turkish; ts tso_Latn Tsonga; tt tat_Cyrl Tatar;
ug uig_Arab Uyghur; uk ukr_Cyrl Ukrainian; ur urd_Arab Urdu; uz uzn_Latn Uzbek; vi vie_Latn Vietnamese;
wo wol_Latn Wolof; xh xho_Latn Xhosa; yi ydd_Hebr Yiddish; yo yor_Latn Yoruba; zh zho_Hans Chinese;
zt zho_Hant Chinese (traditional); zu zul_Latn Zulu
"""
_ENTRIES = [entry.split(maxsplit=2) for entry in _TABLE.replace("\n", " ").split(";")]
_NAMES: Mapping[str, str] = MappingProxyType({short: name for short, _, name in _ENTRIES})
_BY_LONG: Mapping[str, str] = MappingProxyType({long: short for short, long, _ in _ENTRIES})
# Three letters, of what has one script; of Chinese, the first.
_BY_THREE: Mapping[str, str] = MappingProxyType(
    {**{long[:3]: short for short, long, _ in reversed(_ENTRIES)}, "ara": "ar", "lav": "lv", "nor": "no", "sqi": "sq"}
)
# mBART's: a language and a country.
_OF_COUNTRY = re.compile(r"([a-z]{2,3})_[A-Z]{2}")


def short_code(code: str) -> str:
    """The two letters of a language by any of its codes; the code itself where none are known."""
    if code in _NAMES:
        return code
    country = _OF_COUNTRY.fullmatch(code)
    if country is not None:
        return country[1]
    return _BY_LONG.get(code) or _BY_THREE.get(code) or code


def name_of(code: str) -> str:
    """The name of a language by its short code; the code itself where none is known."""
    return _NAMES.get(code, code)
