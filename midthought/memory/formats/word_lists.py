"""Words at the starts of lines: names of header fields, roles that are also speaker labels, and notes that are no speakers."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROLES = _words(
    """
anfitrión attendees befragte befragter client co-host co-hosts cohost convidado gast guest guests gäste host hosts interviewee
entrevistada entrevistado entrevistador entrevistadora enquêteur enquêté intervistato intervistatore
interviewees interviewer interviewers invitada invitado invité invités moderation moderator moderators
narrator ospite panelist panelists participant participants presentador presenter presenters speaker speakers
ведущий гости гость אורח אורחת מנחה מראיין الضيف المضيف مقدم ゲスト 主持 主持人 主播 司会 嘉宾 嘉賓 来宾 게스트 진행
"""
)
"""Fields that name people, and labels of speakers."""

LONG_FIELDS = _words(
    """
about abstract beschreibung descripción description episode intro notes overview resumen resumo riassunto
résumé samenvatting show summary synopsis zusammenfassung описание תקציר ملخص 摘要 概要 简介 説明 요약
"""
)
"""Fields whose value may have several sentences."""

FIELDS = _words(
    """
age agenda aired artwork audio author authors autor autoren bio biography categories category chapters company contact
copyright created credits data date datum dauer duración durata duration durée editor editors email episodio
fecha feed file filename folge format fuente gender guid homepage id idioma image job keywords language languages
langue length licence licencia license lingua link links lizenz location media meeting modified music name nationality
network number occupation order organization phone place podcast producer producers profile project published publisher puntata
quelle rating recorded reference released runtime season sendung series sex source sources sponsor sponsors
sprache status subject subtitle tags tema thema time timestamp titel title titolo titre topic topics
transcribed transcriber transcript transcription type título updated url venue version video web website words
émission épisode выпуск дата длительность источник лицензия название тема эпизод язык כותרת מקור משך נושא פרק
קישור שפה תאריך التاريخ الحلقة الرابط العنوان اللغة المدة المصدر الموضوع رישיון タイトル 主题 來源 出典 収録日 日付 日時 日期 时长
时间 時長 時間 来源 标题 標題 版权 番組 節目 节目 言語 語言 许可 语言 配信日 链接 题目 날짜 시간 언어 제목 출처
"""
)
"""Other header fields of transcripts."""

ANNOTATIONS = _words(
    """
achtung aka also and anmerkung answer answers anyway applause attention because beispiel but caution chapter
conclusion correction definition disclaimer edit ejemplo example examples exemple fact facts figure finally
first fyi here hint hinweis how however http https important importante laughter music n.b. nb nota note notes
now observação p.s. part problem ps question questions quote re remarque remember reminder result results
second section sfx silence slide slides so solution sound spoiler step table therefore third tip tips today todo trigger
applaus aplausos applaudissements applausi alkış аплодисменты 拍手 掌声 박수 musik música musica musique müzik музыка
音乐 音楽 음악 gelächter risas risos rires risate смех
update warning what when where who why внимание примечание הערה ملاحظة 例 備考 备注 注 注意 주 참고
"""
)
"""What stands before a colon in notes and ordinary sentences."""

NUMBER_WORDS = _words(
    "one two three four five six seven eight nine ten uno dos tres cuatro un deux trois eins zwei drei um dois due "
    "first second third fourth firstly secondly thirdly lastly finally erstens zweitens drittens viertens schließlich primero "
    "segundo tercero primeiro terceiro premièrement deuxièmement troisièmement во-первых во-вторых в-третьих"
)
"""Items of a list that somebody reads out, as in `Two: the bell.`"""

NUMBERED = _words(
    """
act action capitolo capítulo chapitre chapter decision decisions episode figure hoofdstuk item kapitel milestone note option part
phase question scene section step table topic transcript глава
"""
)
"""First words of labels such as `Step 3`, which are no speakers."""

ARTICLES = _words(
    """
a an das der des die du een ein eine el il la las le les los o the um uma un una une uno
"""
)
"""First words of descriptions such as `a baker of 23`."""

COLUMNS = _words(
    """
begin content duration end id line name speaker start stop text time timestamp transcript words
"""
)
"""Names of a table's columns."""
